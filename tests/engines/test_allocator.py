"""What the C library's allocator keeps, in processes of their own: its settings hold for a whole process."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")

OWN = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
THREADS = """
import ctypes, re, threading
from headrace.engines.allocator import limit_arenas
{call}
barrier = threading.Barrier(6)
def work():
    blocks = [bytes(50_000) for _ in range(20)]
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
[each.start() for each in threads]
[each.join() for each in threads]
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/proc/self/fd/1", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
FREED = """
from pathlib import Path
from headrace.engines.allocator import release_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
blocks = [b"x" * 20_000 for _ in range(5_000)]
last = b"x" * 20_000
del blocks
before = resident()
release_memory()
print(before - resident())
"""


def run(code: str, **settings: str) -> str:
    plain = {key: value for key, value in os.environ.items() if key not in OWN}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=plain | settings).stdout


def test_threads_share_two_arenas():
    assert run(THREADS.format(call="limit_arenas()")).count("<heap nr=") == 2


def test_what_the_environment_says_stays():
    found = run(THREADS.format(call="limit_arenas()"), MALLOC_ARENA_MAX="4")
    assert found.count("<heap nr=") == 4


def test_freed_memory_goes_back_below_what_is_in_use():
    assert int(run(FREED)) > 80_000_000
