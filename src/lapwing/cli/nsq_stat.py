"""nsq_stat: one line per interval about a channel, summed over all nsqds."""

from lapwing.cli.flags import read
from lapwing.tools.nsq_stat import NsqStatOptions, watch
from lapwing.tools.program import end

EXAMPLE = "nsq_stat --topic=orders --channel=billing --lookupd-http-address=127.0.0.1:4161"


def main() -> None:
    """Run the program."""
    options = read(NsqStatOptions, "nsq_stat", example=EXAMPLE).options
    end("nsq_stat", options, watch)


if __name__ == "__main__":
    main()
