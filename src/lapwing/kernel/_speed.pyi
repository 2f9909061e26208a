from lapwing.kernel.pure import *  # noqa: F403 - the same names, with the same types
