"""A pytest plug-in that keeps the tests whose name's checksum is divisible by $PYTEST_EVERY: the same ones wherever they run."""
import os
import zlib


def pytest_collection_modifyitems(items):
    every = int(os.environ.get("PYTEST_EVERY", "1"))
    items[:] = [i for i in items if zlib.crc32(i.nodeid.encode()) % every == 0]
