import pytest

from gagar_mcore.records.layout import RunLayout


@pytest.fixture
def layout(tmp_path):
    return RunLayout(tmp_path / "run")
