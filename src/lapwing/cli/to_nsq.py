"""to_nsq: publishes standard input, message by message."""

from lapwing.cli.flags import read
from lapwing.tools.program import end
from lapwing.tools.to_nsq import ToNsqOptions, publish_stdin

EXAMPLE = "tail -f app.log | to_nsq --topic=lines --nsqd-tcp-address=127.0.0.1:4150"


def main() -> None:
    """Run the program."""
    options = read(ToNsqOptions, "to_nsq", example=EXAMPLE).options
    end("to_nsq", options, publish_stdin)


if __name__ == "__main__":
    main()
