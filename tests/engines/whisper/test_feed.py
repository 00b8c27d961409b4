"""Audio between the thread that decodes it and the engine: in order, and within limits."""

import threading

import numpy as np
import pytest

from headrace.audio import Ending, Window
from headrace.engines.whisper.feed import Account, AudioRoom, Clip, ClipFeed, SampleFeed, UnwantedError


def test_samples_come_out_as_they_went_in():
    room = AudioRoom(10**6)
    feed = SampleFeed(Account(room, least=0, most=10**6))
    sound = np.arange(1000, dtype=np.float32)
    for start in range(0, 1000, 130):
        feed.add(sound[start : start + 130])
    np.testing.assert_array_equal(feed.read(0, 300), sound[:300])
    np.testing.assert_array_equal(feed.read(250, 900), sound[250:900])
    np.testing.assert_array_equal(feed.read(990, 2000), sound[990:])
    assert len(feed.read(1000, 2000)) == 0


def test_what_was_read_past_is_given_back():
    room = AudioRoom(100)
    feed = SampleFeed(Account(room, least=0, most=10**6))
    feed.add(np.zeros(100, np.float32))
    assert not room.has_room()
    feed.read(100, 200)
    assert room.has_room()
    feed.add(np.zeros(100, np.float32))
    feed.close()
    assert room.has_room()


def test_a_thread_waits_until_there_is_room():
    room = AudioRoom(100)
    account = Account(room, least=10, most=50)
    feed = ClipFeed(account)
    for start in (0, 30):
        feed.put(Clip(Window(start, start + 30, 0, 0), np.zeros(30, np.float32)))
    assert not account.has_room()
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (account.wait(lambda: True), waited.set()))
    thread.start()
    assert not waited.wait(0.05)
    feed.pop()
    assert waited.wait(5)
    thread.join()


def test_little_is_always_allowed():
    room = AudioRoom(10)
    Account(room, least=0, most=100).add(50)
    account = Account(room, least=20, most=100)
    account.add(20)
    assert account.has_room()
    account.add(1)
    assert not account.has_room()
    with pytest.raises(UnwantedError):
        account.wait(lambda: False)


def test_silence_takes_no_room():
    room = AudioRoom(10)
    feed = ClipFeed(Account(room, least=0, most=10))
    feed.put(Clip(Window(0, 480_000, 0, 0), None))
    feed.end(Ending(30.0))
    assert room.has_room()
    assert feed.pop().waveform is None
    assert feed.peek() is None
