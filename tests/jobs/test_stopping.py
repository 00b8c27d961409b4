"""Ctrl-C and SIGTERM end the process and what it started at once, with one line."""

import os
import signal
import subprocess
import sys
import time

import pytest

from headrace.jobs.stopping import stopping_at_once
from headrace.pipelines.processes import descendants

SLEEPING = """
import subprocess, sys, threading, time
from headrace.jobs.stopping import stopping_at_once
child = subprocess.Popen("sleep 60 & echo $!; wait", shell=True, stdout=subprocess.PIPE, text=True)
worker = threading.Thread(target=time.sleep, args=(60,))
worker.start()
with stopping_at_once():
    print(child.stdout.readline(), flush=True)
    worker.join()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_its_threads_and_its_children(number):
    with subprocess.Popen([sys.executable, "-c", SLEEPING], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert grandchild in descendants(process.pid)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert err == "stopped: run the same command again to resume\n"
    assert _has_ended(grandchild, within_s=10)


def test_the_handlers_of_before_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with stopping_at_once():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def _has_ended(pid: int, within_s: float) -> bool:
    """Whether the process, which was killed, is gone in time: the kernel takes it down after the signal."""
    deadline_s = time.monotonic() + within_s
    while _is_running(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def _is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie that nobody has asked about."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
