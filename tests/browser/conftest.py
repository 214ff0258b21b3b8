"""A headless Chromium for all browser tests; without one they are skipped, and say what to install."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'rlplan[dev]'")
    with api.sync_playwright() as playwright:
        path = next((found for name in SYSTEM_BROWSERS if (found := shutil.which(name))), None)
        # Chromium refuses to run as root with its sandbox; pages are our own and load nothing.
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        try:
            started = playwright.chromium.launch(executable_path=path, args=flags)
        except api.Error as error:
            pytest.skip(f"no Chromium to start (apt-get install chromium): {str(error).splitlines()[0]}")
        yield started
        started.close()
