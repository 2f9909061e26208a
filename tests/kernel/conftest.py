"""Every test that takes `kernel` runs on both twins."""

from types import ModuleType

import pytest
from twins import TWINS


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """One twin of the kernel."""
    twin: ModuleType = request.param
    return twin
