"""nsq_to_http: sends each message to HTTP endpoints."""

from lapwing.cli.flags import read
from lapwing.tools.nsq_to_http import NsqToHttpOptions, forward
from lapwing.tools.program import end

EXAMPLE = "nsq_to_http --topic=orders --post=http://127.0.0.1:8080/orders --nsqd-tcp-address=127.0.0.1:4150"


def main() -> None:
    """Run the program."""
    parsed = read(NsqToHttpOptions, "nsq_to_http", example=EXAMPLE)
    given = parsed.given("content_type")
    end("nsq_to_http", parsed.options, lambda options: forward(options, content_type_given=given))


if __name__ == "__main__":
    main()
