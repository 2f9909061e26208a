"""nsq_to_file: writes topics to files; a message is finished only once its bytes are safe."""

from lapwing.cli.flags import read
from lapwing.tools.nsq_to_file import NsqToFileOptions, archive
from lapwing.tools.program import end

EXAMPLE = "nsq_to_file --topic=orders --output-dir=archive --nsqd-tcp-address=127.0.0.1:4150"


def main() -> None:
    """Run the program."""
    parsed = read(NsqToFileOptions, "nsq_to_file", example=EXAMPLE)
    end("nsq_to_file", parsed.options, lambda options: archive(options, parsed.rest))


if __name__ == "__main__":
    main()
