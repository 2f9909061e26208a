"""The event loop of a daemon: which one it is, and what runs on it."""

import asyncio
import io
import sys
import threading


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop where it is installed, else of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def stacks() -> str:
    """Return the stack of every task and every thread."""
    import traceback

    out = io.StringIO()
    for task in asyncio.all_tasks():
        out.write(f"task {task.get_name()}:\n")
        task.print_stack(file=out)
        out.write("\n")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"thread {names.get(ident, ident)}:\n")
        out.writelines(traceback.format_stack(frame))
        out.write("\n")
    return out.getvalue()
