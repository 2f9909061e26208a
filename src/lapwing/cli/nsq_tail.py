"""nsq_tail: prints the messages of topics."""

from lapwing.cli.flags import read
from lapwing.tools.nsq_tail import NsqTailOptions, tail
from lapwing.tools.program import end

EXAMPLE = "nsq_tail --topic=orders --nsqd-tcp-address=127.0.0.1:4150"


def main() -> None:
    """Run the program."""
    options = read(NsqTailOptions, "nsq_tail", example=EXAMPLE).options
    end("nsq_tail", options, tail)


if __name__ == "__main__":
    main()
