"""The outbox for Django: add `lapwing.outbox.django` to INSTALLED_APPS and migrate.

    from lapwing.outbox.django.relay import Relay, add

    with transaction.atomic():
        order.save()
        add("orders", b"...")                                  # committed with the order, or not at all

    with Relay("127.0.0.1:4150") as relay:                     # in a process of its own
        relay.run()
"""
