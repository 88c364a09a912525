"""Contract suites (conformance tests) of the ports, shipped so that others can test their adapters."""

from pkgutil import iter_modules

import pytest

# Before they are imported: without it a sentence that fails would not say what was there instead.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
