"""Spark reads topics, writes topics, and shows up on the brokers as a channel."""


def reason(error: BaseException) -> str:
    """Return in one line why a query, a read or a write failed, and where in your own code.

    Spark's exceptions carry plans and the stacks of two languages:

        try:
            query.awaitTermination()
        except Exception as error:
            print(lapwing.spark.reason(error))
    """
    from lapwing.spark.failures import complaint  # executors import this package, and do not need it

    return complaint(error)
