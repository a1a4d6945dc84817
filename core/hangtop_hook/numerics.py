"""Finding the first inf or nan of a program: in activations, weights and gradients, by module.

Hooks that torch has for all modules record the smallest and largest absolute value of inputs and
outputs, of weights, and of gradients in backward; those of the optimizer are recorded ahead of its
step. Nothing waits for a device meanwhile: values are read when the outermost module has returned,
when backward is over, and ahead of a step. A full backward hook would be simpler, but it adds a
node to the graph and forbids operations in place; a hook on a tensor does neither. A compiled
module has no submodules any more: its own inputs and outputs are measured, and all weights in it.
Weights that FSDP shards are measured ahead of a pass, each part by the rank that holds it: within
the pass all ranks have the same.

A batch is a call of an outermost module; numbers begin at 0. Where a program calls several, as a
model and its loss, the next batch begins with the first of them that is called again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import importing, processes
from .failures import attempt, complain
from .measures import Measure, Measurer, read, tensors
from .modulenames import Name, Names
from .numericsfile import File, Settings, from_environment

MODULE = "torch.nn.modules.module"
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
MAX_PENDING = 8192
"""Limit of pending measures; at the limit they are read, wherever the program is."""
_KINDS = {"input": "activation", "output": "activation", "value": "activation", "weight": "weight"}

Site = Optional[Tuple[Any, int]]


_watcher: Any = None
"""The watcher of this process, if its modules are watched."""


class Frame:
    """One call of a module, one gradient on its way through it, or one module at a step."""

    __slots__ = ("batch", "kind", "measures", "name", "site")

    def __init__(self, kind: str, batch: int, name: Name, site: Site) -> None:
        self.kind = kind
        self.batch = batch
        self.name = name
        self.site = site
        self.measures: List[Measure] = []


class Bad(NamedTuple):
    """A non-finite value."""

    what: str
    kind: str
    frame: Frame
    measure: Measure


class Stop(FloatingPointError):
    """Raised in the program if it was requested to end at the first non-finite value."""


def start(directory: str) -> None:
    """Watch the modules of this process, if the run requests it and it is not a rank's helper."""
    settings = from_environment(os.environ)
    owner = os.environ.get(processes.RANK_PID, str(os.getpid()))
    if settings is not None and owner == str(os.getpid()):
        wanted = settings

        def begin(module: Any) -> None:
            register(module, directory, wanted)

        importing.when_imported(MODULE, begin)


def detect_overflow(tensor: Any, name: str) -> None:
    """See `hangtop_hook.detect_overflow`."""
    if _watcher is not None:
        _watcher.guarded(_watcher.value, tensor, name)


def register(module: Any, directory: str, settings: Settings) -> Watcher:
    """Register the hooks in torch.nn.modules.module; the rest of torch may not be imported yet."""
    global _watcher
    _watcher = watcher = Watcher(File(directory, settings), settings)

    def before(module: Any, arguments: Any) -> None:
        if sys.modules["torch"].compiler.is_compiling():
            return
        watcher.guarded(watcher.before, module, arguments)

    def after(module: Any, arguments: Any, *results: Any) -> None:
        if sys.modules["torch"].compiler.is_compiling():
            return
        watcher.guarded(watcher.after, module, *results)

    watcher.handles.append(module.register_module_forward_pre_hook(before))
    add = module.register_module_forward_hook
    try:
        watcher.handles.append(add(after, with_kwargs=True, always_call=True))
    except TypeError:  # torch 2.4: arguments by name are not seen
        watcher.handles.append(add(after, always_call=True))
    return watcher


class Watcher:
    """The watched modules of this process."""

    def __init__(self, file: File, settings: Settings) -> None:
        self.pid = os.getpid()
        self.off = False
        self.batch = 0
        self.handles: List[Any] = []
        """The handles of hooks in torch, for all modules and optimizers."""
        self._file = file
        self._settings = settings
        self._names = Names()
        self._measurer: Any = None
        self._calls = threading.local()
        self._called: Set[int] = set()
        self._shown: Set[Tuple[int, str]] = set()
        """Weights, by module and name, that were measured ahead of this pass."""
        self._lock = threading.RLock()
        self._pending: List[Tuple[Frame, Measure]] = []
        self._finished: List[Frame] = []
        self._rings: Dict[str, Deque[Frame]] = {}
        self._found: Set[str] = set()
        self._scaled: Optional[bool] = None
        self._backward = -1

    def guarded(self, action: Any, *arguments: Any) -> None:
        """Act, unless this is a forked process by now; an error only ends watching."""
        if self.off or os.getpid() != self.pid:
            return
        try:
            if self._measurer is None:
                self._begin()
            if not self._is_unfit():
                action(*arguments)
        except Stop:
            self.stop()
            raise
        except Exception as error:
            self.stop()
            complain("numerics", error)
            attempt("numerics", self._file.note, "stopped: %s: %s" % (type(error).__name__, error))

    def stop(self) -> None:
        """Stop watching."""
        self.off = True
        for handle in self.handles:
            handle.remove()
        self._file.last()

    def _begin(self) -> None:
        self._torch = torch = sys.modules["torch"]
        self._inside = os.path.dirname(str(torch.__file__)) + os.sep
        self._measurer = Measurer()
        optimizer = sys.modules["torch.optim.optimizer"]
        hook = optimizer.register_optimizer_step_pre_hook(
            lambda optimizer, *_: self.guarded(self.step, optimizer)
        )
        self.handles.append(hook)

    def _is_unfit(self) -> bool:
        """Return whether operations are recorded or transformed, so that ours would be included."""
        core = self._torch._C
        if core._get_tracing_state() or core._functorch.peek_interpreter_stack() is not None:
            return True
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def before(self, module: Any, arguments: Any) -> None:
        """Measure the inputs of a module, and its own weights."""
        stack = self._stack()
        backward = self._torch._C._current_graph_task_id() != -1
        if not stack and not backward:  # in backward, a checkpoint calls its modules once more
            self._count(module)
        root = stack[0][0] if stack else module
        name = self._names.of(module, root)
        if name is None:
            return
        frame = Frame("forward", self.batch, name, self._site())
        with self._measurer.apart():
            if not stack and not backward:
                self._shown.clear()
            if not backward:
                self._weights_ahead(module, root, frame.site)
            stack.append((module, frame))
            for path, tensor in tensors(arguments, "input"):
                self._measure(frame, "input", path, tensor)
            for path, parameter in module._parameters.items():
                if parameter is not None and (id(module), path) not in self._shown:
                    self._measure(frame, "weight", path, parameter)

    def _weights_ahead(self, module: Any, root: Any, site: Site) -> None:
        """Measure weights that no call of their own module will see unchanged."""
        compiled = type(module).__name__ == "OptimizedModule"
        spread = module is root and "torch.distributed.fsdp" in sys.modules
        if not (compiled or spread):
            return
        for part in module.modules():
            name = self._names.of(part, root)
            if name is None:
                continue
            frame = Frame("weights", self.batch, name, site)
            for path, parameter in self._unshown(part, compiled):
                self._measure(frame, "weight", path, parameter)
            if frame.measures:
                self._finished.append(frame)

    def _unshown(self, module: Any, compiled: bool) -> Iterator[Tuple[str, Any]]:
        """Yield the weights of a compiled or sharded module that were not measured, each once."""
        for path, parameter in module._parameters.items():
            wanted = compiled or type(parameter).__name__ == "DTensor"
            if wanted and (id(module), path) not in self._shown:
                self._shown.add((id(module), path))
                if parameter is not None:
                    yield path, parameter

    def after(self, module: Any, *results: Any) -> None:
        """Measure the output of a module; it is None where the module raised."""
        stack = self._stack()
        if not any(called is module for called, _ in stack):
            return
        called, frame = stack.pop()
        while called is not module:  # calls that ended without a hook
            called, frame = stack.pop()
        with self._measurer.apart():
            for name, tensor in tensors(results[0] if len(results) == 2 else {}, "input"):
                self._measure(frame, "input", name, tensor)
            for name, tensor in tensors(results[-1], "output"):
                self._measure(frame, "output", name, tensor)
        for name, tensor in tensors(results[-1], "output"):
            self._follow_back(frame, name, tensor)
        self._finished.append(frame)
        if not stack or len(self._pending) > MAX_PENDING:
            self.look()

    def _stack(self) -> List[Tuple[Any, Frame]]:
        """Return the calls that this thread is in."""
        if not hasattr(self._calls, "stack"):
            self._calls.stack = []
        stack: List[Tuple[Any, Frame]] = self._calls.stack
        return stack

    def _count(self, root: Any) -> None:
        if id(root) in self._called:
            self._called.clear()
            self._end_batch()
            self.batch += 1
        self._called.add(id(root))

    def _end_batch(self) -> None:
        self.look()
        self._file.record_batch(self.batch)
        last = self._settings.abort_after
        if last is not None and self.batch >= last:
            self._file.note("ended after batch %d, as asked for" % self.batch)
            raise Stop("ended after batch %d, as --abort-after-batch says" % self.batch)

    def _site(self) -> Site:
        """Return where the program, outside torch and us, calls the module or shows a value."""
        frame = sys._getframe(4)
        while frame.f_code.co_filename.startswith((self._inside, _OURS, "<eval_with_key>")):
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return frame.f_code, frame.f_lineno

    def _measure(self, frame: Frame, role: str, name: str, tensor: Any) -> None:
        measure = self._measurer.measure(role, name, tensor)
        if measure is not None:
            frame.measures.append(measure)
            self._pending.append((frame, measure))

    def _follow_back(self, frame: Frame, name: str, tensor: Any) -> None:
        """Hook the gradient of an output; a tensor without history would keep the hook."""
        if not getattr(tensor, "requires_grad", False) or tensor.grad_fn is None:
            return

        def hook(gradient: Any) -> None:
            if not self._torch.compiler.is_compiling():
                self.guarded(self.gradient, frame, "gradient of " + name, gradient)

        tensor.register_hook(hook)

    def value(self, tensor: Any, name: str) -> None:
        """Measure a tensor, or tensors, that the program passes itself."""
        stack = self._stack()
        owner = stack[-1][1].name if stack else Name("", "", "")
        frame = Frame("forward", self.batch, owner, self._site())
        with self._measurer.apart():
            for path, part in tensors(tensor, str(name)[:60]):
                self._measure(frame, "value", path, part)
        self._finished.append(frame)
        if not stack:
            self.look()

    def gradient(self, call: Frame, name: str, gradient: Any) -> None:
        """Measure a gradient in backward."""
        frame = Frame("backward", call.batch, call.name, call.site)
        with self._measurer.apart():
            self._measure(frame, "gradient", name, gradient)
        self._finished.append(frame)
        task = self._torch._C._current_graph_task_id()
        if task not in (-1, self._backward):
            self._backward = task
            engine = self._torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self.guarded(self.look))

    def step(self, optimizer: Any) -> None:
        """Measure the gradients that an optimizer is about to use."""
        if getattr(optimizer, "found_inf", None) is not None:
            return  # a fused one, to which GradScaler leaves the check
        frames: Dict[Name, Frame] = {}
        with self._measurer.apart():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        owner, name = self._names.of_parameter(parameter)
                        owner = owner or Name("", "", "")
                        frame = frames.setdefault(owner, Frame("step", self.batch, owner, None))
                        self._measure(frame, "gradient", name + ".grad", parameter.grad)
        self._finished += frames.values()
        self.look()

    def look(self) -> None:
        """Read the pending measures, and report what is not finite."""
        with self._lock:
            pending, self._pending = self._pending, []
            finished, self._finished = self._finished, []
            with self._measurer.apart():
                read(self._torch, [measure for _, measure in pending])
            findings = self._first(pending)
            for bad in findings:
                self._file.record_bad(bad, self._until(bad.frame, finished))
            for frame in finished:
                self._ring(frame.kind).append(frame)
            self._file.trace(finished)
        if (
            findings
            and self._settings.stop
            and any(not self._file.expected(bad) for bad in findings)
        ):
            raise Stop(self._file.sentence(findings[0]))

    def _first(self, pending: Sequence[Tuple[Frame, Measure]]) -> List[Bad]:
        """Return the first of each kind that was not found before."""
        findings = []
        for frame, measure in pending:
            what = measure.bad()
            if what is None:
                continue
            kind = _KINDS.get(measure.role, "gradient")
            if kind == "gradient" and frame.kind == "backward" and self._is_scaled():
                kind = "scaled gradient"
            if kind not in self._found:
                self._found.add(kind)
                findings.append(Bad(what, kind, frame, measure))
        return findings

    def _ring(self, kind: str) -> Deque[Frame]:
        """Return the last frames of a kind; weights, forward, backward and steps are separate."""
        return self._rings.setdefault(kind, deque(maxlen=self._settings.frames))

    def _until(self, last: Frame, finished: List[Frame]) -> List[Frame]:
        """Return the frames up to one of the same kind, as many as are kept."""
        frames = list(self._ring(last.kind))
        for frame in finished:
            if frame is last:
                break
            if frame.kind == last.kind:
                frames.append(frame)
        return [*frames, last][-self._settings.frames :]

    def _is_scaled(self) -> bool:
        """Return whether the program has a GradScaler, under which gradients overflow by design.

        Only checked when the first gradient is not finite: searching all objects takes a while.
        """
        if self._scaled is None:
            import gc

            amp = sys.modules.get("torch.amp.grad_scaler")
            scaler = getattr(amp, "GradScaler", ())
            scalers = [
                candidate for candidate in gc.get_objects() if issubclass(type(candidate), scaler)
            ]
            self._scaled = any(candidate.is_enabled() for candidate in scalers)
        return self._scaled
