"""The header that carries an AUTH secret over HTTP."""

import pytest

from lapwing.net.client.bearer import credentials, secret_of


@pytest.mark.parametrize("secret", ["s", "two words", "käse", "a:b,c=", "Bearer s"])
def test_a_secret_comes_back_as_it_was_sent(secret: str) -> None:
    assert secret_of(credentials(secret)) == secret.encode()


@pytest.mark.parametrize("secret", ["", " s", "s ", "a\r\nX-Evil: 1", "a\0b", b"\x7f"])
def test_a_secret_that_a_header_cannot_carry_is_refused_without_naming_it(secret: str | bytes) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as caught:
        credentials(secret)

    assert not secret or repr(secret) not in str(caught.value)


def test_the_name_of_the_scheme_may_be_in_any_case() -> None:
    assert secret_of(b"bearer s") == secret_of(b"BEARER   s ") == b"s"


@pytest.mark.parametrize("value", [None, b"", b"Bearer", b"Bearer  ", b"Basic dTpw", b"s"])
def test_any_other_header_holds_no_secret(value: bytes | None) -> None:
    assert secret_of(value) is None
