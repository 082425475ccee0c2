"""The task boundary: where errors become words and exit codes, and signals become exceptions."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit
from invoke.tasks import Task, task

from rocbake import log
from rocbake.errors import RocbakeError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from invoke.context import Context
    from invoke.parser.argument import Argument

_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


class Verb(Task[Any]):
    """A task that ends with a sentence and an exit code instead of a traceback."""

    def __call__(self, context: Context, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as invoke has it
        """Run the verb.

        Raises:
            Exit: With the error's exit code; 130 and 143 for SIGINT and SIGTERM.
        """
        signal.signal(signal.SIGTERM, _terminate)
        try:
            self._heed_dry(context, kwargs)
            result = super().__call__(context, *args, **kwargs)
            # A reader that has left shows here, and not when the interpreter ends.
            sys.stdout.flush()
        except RocbakeError as error:
            raise _end_with(error) from error
        except KeyboardInterrupt as interrupt:
            log.fail("interrupted; what was finished is kept, nothing is half-written")
            raise Exit(code=_INTERRUPTED) from interrupt
        except _TerminatedError as ended:
            log.fail("terminated; what was finished is kept, nothing is half-written")
            raise Exit(code=_TERMINATED) from ended
        except BrokenPipeError as closed:
            # Whoever read our results has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise Exit(code=128 + signal.SIGPIPE) from closed
        except OSError as error:
            if error.errno is None:  # a library's own: none of the system's sentences
                raise
            raise _end_with(_explain(error)) from error
        else:
            return result

    def get_arguments(self, *args: Any, **kwargs: Any) -> list[Argument]:  # noqa: ANN401 - as above
        """Return the options; those that may be repeated demand a value as all others do.

        Invoke takes `--name` with nothing after it for no name at all, which means every one.
        """
        arguments = super().get_arguments(*args, **kwargs)
        for one in arguments:
            if one.kind is list:
                one.raw_value = None
        return arguments

    def _heed_dry(self, context: Context, kwargs: dict[str, Any]) -> None:
        """Let Invoke's own --dry, which only holds back shell commands, never start work."""
        if not context.config.run.dry:
            return
        if "dry_run" not in kwargs:
            raise UsageError(
                f"--dry does nothing for {self.name}: it has no plan to show",
                hint=f"invoke {self.name} --help",
            )
        kwargs["dry_run"] = True


def _end_with(error: RocbakeError) -> Exit:
    """Tell an error, and return what ends the process with its code."""
    if os.environ.get("ROCBAKE_DEBUG"):
        traceback.print_exc()
    log.fail(error.for_humans())
    return Exit(code=error.exit_code)


def _explain(error: OSError) -> RocbakeError:
    """Return a sentence for what the system refused, and what may help."""
    if error.filename is None:
        # Perhaps stdout itself; what is left for it must not fail again at our end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    where = "output" if error.filename is None else os.fsdecode(error.filename)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            hint = f"the file system of {where} is full: make room, for example by invoke clean"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            hint = f"{where} must be writable, or readable, for this user"
        case _:
            hint = "ROCBAKE_DEBUG=1 invoke ...  shows where it happened"
    return RocbakeError(f"{where}: {error.strerror or error}", hint=hint)


class _TerminatedError(BaseException):
    """SIGTERM arrived. Not an Exception, so that only cleaning up stops it on its way."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    # A second one must not stop the cleaning up that the first one asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


# Options only: a word that is no option is a mistake, and must not start anything.
verb = functools.partial(task, klass=Verb, positional=[], auto_shortflags=False)
