"""Coroutines on the loop of pika's adapter `select` or `asyncio`, the first argument of the programs beside this one.

An `await` is a callback of pika: the coroutine continues with what the callback gets.
"""

import asyncio
import sys

from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.select_connection import IOLoop, SelectConnection


class Callback:
    """An `await` ends when `start`'s argument is called; an error of a channel or connection is raised."""

    def __init__(self, start):
        self.start = start

    def __await__(self):
        arguments = yield self
        return arguments[0] if len(arguments) == 1 else arguments


class Loop:
    """pika's loop of one adapter, and the coroutine that runs on it."""

    def __init__(self, adapter):
        self.is_asyncio = adapter == "asyncio"
        self.ioloop = asyncio.new_event_loop() if self.is_asyncio else IOLoop()
        self.connection_class = AsyncioConnection if self.is_asyncio else SelectConnection
        self.waiting = None

    def run(self, coroutine):
        self.coroutine, self.error = coroutine, None
        self.ioloop.call_later(0, lambda: self.resume(None, lambda: coroutine.send(None)))
        self.ioloop.run_forever() if self.is_asyncio else self.ioloop.start()
        if self.error:
            raise self.error

    def resume(self, waiting, step):
        if waiting is not self.waiting:
            return  # the coroutine has continued because of an error
        try:
            self.waiting = step()
        except StopIteration:
            self.ioloop.stop()
        except BaseException as error:  # noqa: BLE001  # raised by run
            self.error = error
            self.ioloop.stop()
        else:
            awaited = self.waiting
            send = lambda *arguments: self.resume(awaited, lambda: self.coroutine.send(arguments))  # noqa: E731
            awaited.start(lambda *arguments: self.ioloop.call_later(0, lambda: send(*arguments)))

    def fail(self, _source, error):
        self.throw(self.waiting, error)

    def throw(self, awaited, error):
        self.ioloop.call_later(0, lambda: self.resume(awaited, lambda: self.coroutine.throw(error)))

    def sleep(self, seconds):
        return Callback(lambda done: self.ioloop.call_later(seconds, done))


LOOP = Loop(sys.argv[1])
