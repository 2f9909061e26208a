"""The nsq_* programs, and the work behind the `lapwing` command; they speak the protocol as any client does."""
