"""Ports of the loopback for servers whose port must be known before they start."""

import contextlib
import socket
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def held_ports() -> Iterator[Callable[[], int]]:
    """`with held_ports() as free_port`: each `free_port()` is a port that no one else is given until the block ends.

    A socket stays bound to it without listening, so the kernel never assigns it as a free port. A server that binds it
    by number with SO_REUSEADDR, as servers do, still can: only one of the two sockets listens.
    """
    with contextlib.ExitStack() as stack:

        def free_port() -> int:
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port: int = holder.getsockname()[1]
            return port

        yield free_port
