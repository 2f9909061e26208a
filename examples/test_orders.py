"""A test of a handler, without a broker and without waiting: python -m pytest test_orders.py"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from orders import Order, app

from lapwing import App
from lapwing.testing import RunningApp


@pytest.mark.asyncio
async def test_an_expired_card_is_tried_three_times(
    lapwing_app: Callable[[App], AbstractAsyncContextManager[RunningApp]],
) -> None:
    async with lapwing_app(app) as shop:
        await app.publish("purchases", Order(1, "expired"))
        (first,) = await shop.handle()
        later = await shop.advance(60) + await shop.advance(60)

    assert first.error.startswith("ValueError: the card of order 1 is expired")
    assert [each.attempts for each in later] == [2, 3]
    assert len(shop.broker.dead_letters("purchases", "billing")) == 1
