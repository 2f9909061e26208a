"""nsq_to_nsq: republishes topics to other nsqds."""

from lapwing.cli.flags import read
from lapwing.tools.nsq_to_nsq import NsqToNsqOptions, republish
from lapwing.tools.program import end

EXAMPLE = "nsq_to_nsq --topic=orders --nsqd-tcp-address=a:4150 --destination-nsqd-tcp-address=b:4150"


def main() -> None:
    """Run the program."""
    options = read(NsqToNsqOptions, "nsq_to_nsq", example=EXAMPLE).options
    end("nsq_to_nsq", options, republish)


if __name__ == "__main__":
    main()
