from lapwing.kernel.tail import *  # noqa: F403 - the same names, with the same types
