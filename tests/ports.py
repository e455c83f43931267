"""Ports of the loopback for servers whose port must be known before they start."""

import contextlib
import socket
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def held_ports() -> Iterator[Callable[[], int]]:
    """`with held_ports() as free_port`: each `free_port()` is a port that no one else is given until the block ends.

    A socket stays bound to it and never listens: so the kernel gives it to nobody who asks for any port. A server that
    asks for it by number, and sets SO_REUSEADDR as servers do, has it all the same: one of two may listen.
    """
    with contextlib.ExitStack() as stack:

        def free_port() -> int:
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port: int = holder.getsockname()[1]
            return port

        yield free_port
