"""Read GPUs through NVML and write a line of JSON for each: runs as a process of its own.

A driver call on a lost GPU may never return. So this is a child of the probe, which checks that
lines keep coming (`gpus.py`); each GPU is named before it is read, so that a hanging one is known.
The child gets this file, or its text where the probe is only in memory.

Every value is optional: what this GPU, driver or pynvml does not have is named in `missing`.
Names and numbers are those of nvml.h (CUDA 13) and of pynvml, which follows it.

    nvmlread.py PLACE_OF_PYNVML SECONDS [GPU_TO_LEAVE_OUT ...]     SECONDS 0: once, then end
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

if TYPE_CHECKING:
    Fields = Dict[str, Any]

LIBRARY = "libnvidia-ml.so.1"
SLOW = 5
"""What rarely changes, or takes long to ask, is read every so many passes."""
AGAIN = 150
"""Passes after which a value that was not supported is asked for again."""
MAX_CPU = 0.004
"""Fraction of a core that reading may cost; else it is done less often."""
MAX_LINKS, MAX_PROCESSES, MAX_EVENTS = 36, 64, 32
_LOST, _RESET, _UNKNOWN = 15, 16, 999
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED and NVML_ERROR_UNKNOWN."""
_LASTING = (2, 3, 4, 13)
"""Of a value: NVML_ERROR_INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND."""
_ALL_LINKS = 0xFFFFFFFF
_FABRIC = ("not supported", "not started", "in progress", "completed")
_LINK_ERRORS = (("replay", 0), ("recovery", 1), ("crc_flit", 2), ("crc_data", 3))
"""nvmlNvLinkErrorCounter_t, up to NVLink 4."""
_LINK_FIELDS = (
    ("effective", "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS"),
    ("integrity", "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS"),
    ("recovery_failed", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"),
)
"""Field values that count errors of a link from NVLink 5 on."""


def say(**message: Any) -> None:
    """Write one line; a probe that is gone ends us (SIGPIPE, and its parent-death signal)."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Device:
    """One GPU, or one MIG device of it, and the values it does not support."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self.nvml, self.index, self.handle = nvml, index, handle
        self.missing: Dict[str, str] = {}
        self.passing: Set[str] = set()
        """Of these, what is worth asking for again with the next pass."""
        self.links: Optional[List[int]] = None

    def begin(self, *, anew: bool) -> None:
        """Begin a pass: forget what may have been for once, or everything."""
        for name in list(self.missing) if anew else self.passing:
            self.missing.pop(name, None)
        self.passing.clear()

    def value(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what ``call`` gives, or None, having noted why under ``name``.

        Raises NVMLError where the GPU as a whole does not answer any more.
        """
        if name in self.missing:
            return None
        try:
            return call(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in (_LOST, _RESET):
                raise
            self.missing[name] = str(error)
            if error.value not in _LASTING:
                self.passing.add(name)
                if error.value == _UNKNOWN and len(self.passing) > 2:
                    raise  # nothing works any more: this is how some GPUs are lost
        except (AttributeError, TypeError, ValueError, OSError) as error:
            # An older pynvml lacks a function, or gives something else.
            self.missing[name] = str(error)[:80]
        return None

    def maybe(self, function: str, *arguments: Any) -> Any:
        """Ask, and return None where that is not there."""
        try:
            return self.ask(function, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in (_LOST, _RESET):
                raise
            return None

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of pynvml with the handle of this device."""
        return getattr(self.nvml, function)(self.handle, *arguments)

    def of(self, *asked: Tuple[str, str, Tuple[Any, ...], Any]) -> Fields:
        """Return fields: name, function of pynvml, its arguments, what to make of its result."""
        fields: Fields = {}
        for name, function, arguments, make in asked:
            got = self.value(name, self.ask, function, *arguments)
            fields[name] = None if got is None else make(got)
        return fields


def text(value: Any) -> str:
    """Older versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def bus_id(info: Any) -> str:
    """Write a PCI address as the kernel does: 0000:1b:00.0 instead of 00000000:1B:00.0."""
    domain, _, rest = text(info.busId).lower().partition(":")
    return "%s:%s" % (domain[-4:].rjust(4, "0"), rest)


def watts(milliwatts: int) -> int:
    """Whole ones, which change less often."""
    return round(milliwatts / 1000.0)


def identity(device: Device) -> Fields:
    """What a GPU is: read once, since it stays."""
    return device.of(
        ("name", "nvmlDeviceGetName", (), text),
        ("uuid", "nvmlDeviceGetUUID", (), text),
        ("serial", "nvmlDeviceGetSerial", (), text),
        ("bus_id", "nvmlDeviceGetPciInfo", (), bus_id),
        ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), watts),
        ("sm_max_mhz", "nvmlDeviceGetMaxClockInfo", (1,), int),
        ("pcie_max_gen", "nvmlDeviceGetMaxPcieLinkGeneration", (), int),
        ("pcie_max_width", "nvmlDeviceGetMaxPcieLinkWidth", (), int),
        ("mig", "nvmlDeviceGetMigMode", (), lambda modes: bool(modes[0])),
    )


def reading(device: Device) -> Fields:
    """What changes all the time."""
    fields = device.of(
        ("power_w", "nvmlDeviceGetPowerUsage", (), watts),
        ("sm_mhz", "nvmlDeviceGetClockInfo", (1,), int),
        ("memory_mhz", "nvmlDeviceGetClockInfo", (2,), int),
        ("temperature", "nvmlDeviceGetTemperature", (0,), int),
        ("energy_j", "nvmlDeviceGetTotalEnergyConsumption", (), lambda mj: int(mj / 1000)),
        ("processes", "nvmlDeviceGetComputeRunningProcesses", (), processes),
    )
    # Renamed in CUDA 12.2; drivers before that know only the old name, later ones both.
    fields["reasons"] = device.value("reasons", _reasons, device.nvml, device.handle)
    rates = device.value("util", device.ask, "nvmlDeviceGetUtilizationRates")
    fields["util"] = rates and rates.gpu
    fields["memory_util"] = rates and rates.memory
    return dict(fields, **memory(device))


def memory(device: Device) -> Fields:
    """Bytes of a GPU or MIG device."""
    info = device.value("memory_used", device.ask, "nvmlDeviceGetMemoryInfo")
    return {} if info is None else {"memory_used": info.used, "memory_total": info.total}


def _reasons(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def processes(found: Any) -> List[List[Optional[int]]]:
    """Return pid, in the outermost namespace, and bytes of GPU memory of each."""
    return [[one.pid, one.usedGpuMemory] for one in found[:MAX_PROCESSES]]


def health(device: Device) -> Fields:
    """What tells of defects, and counters that take long to ask."""
    fields = device.of(
        ("ecc_now", "nvmlDeviceGetTotalEccErrors", (1, 0), int),
        ("ecc_ever", "nvmlDeviceGetTotalEccErrors", (1, 1), int),
        ("ecc_corrected", "nvmlDeviceGetTotalEccErrors", (0, 0), int),
        ("remapped", "nvmlDeviceGetRemappedRows", (), remapped),
        ("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", (), int),
        ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), int),
        ("pcie_replays", "nvmlDeviceGetPcieReplayCounter", (), int),
        ("pcie_tx_kb", "nvmlDeviceGetPcieThroughput", (0,), int),
        ("pcie_rx_kb", "nvmlDeviceGetPcieThroughput", (1,), int),
    )
    fields["fabric"] = device.value("fabric", fabric, device)
    fields["links"] = [link(device, number) for number in links(device)]
    return dict(fields, nvlink_kb=device.value("nvlink_kb", nvlink_kb, device))


def remapped(counts: Any) -> Fields:
    """Rows of memory that were replaced, and whether that waits for a reset, or has failed."""
    names = ("corrected", "uncorrected", "pending", "failed")
    return dict(zip(names, (counts[0], counts[1], bool(counts[2]), bool(counts[3]))))


def links(device: Device) -> List[int]:
    """Return which NVLinks there are: asked once, since a link that is down still is one."""
    if device.links is None:
        device.links = []
        for number in range(MAX_LINKS):
            if device.maybe("nvmlDeviceGetNvLinkState", number) is None:
                break
            device.links.append(number)
    return device.links


def link(device: Device, number: int) -> List[Any]:
    """One NVLink: number, up or not, version, errors since the driver was loaded that are not 0."""
    up = device.value("links", device.ask, "nvmlDeviceGetNvLinkState", number)
    version = device.value("link version", device.ask, "nvmlDeviceGetNvLinkVersion", number)
    errors: Dict[str, int] = {}
    for name, counter in _LINK_ERRORS:
        which = "link errors: " + name
        got = device.value(which, device.ask, "nvmlDeviceGetNvLinkErrorCounter", number, counter)
        if got is not None:
            errors[name] = got
    if not errors:  # from NVLink 5 on
        for name, field in _LINK_FIELDS:
            got = device.value("link errors: " + name, field_value, device, field, number)
            if got is not None:
                errors[name] = got
    counted = {name: count for name, count in errors.items() if count}
    return [number, None if up is None else bool(up), version, counted]


def field_value(device: Device, name: str, scope: int) -> int:
    """Return one field value as a whole number."""
    (found,) = device.ask("nvmlDeviceGetFieldValues", [(getattr(device.nvml, name), scope)])
    if found.nvmlReturn:
        raise device.nvml.NVMLError(found.nvmlReturn)
    return int(found.value.ullVal)


def nvlink_kb(device: Device) -> int:
    """Return KiB of data sent and received over all NVLinks."""
    ways = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
    return sum(field_value(device, way, _ALL_LINKS) for way in ways)


def fabric(device: Device) -> Optional[str]:
    """Return the state of a GPU's registration with the NVSwitch fabric, None without one."""
    info = device.nvml.c_nvmlGpuFabricInfoV_t()
    device.nvml.nvmlDeviceGetGpuFabricInfoV(device.handle, ctypes.byref(info))
    if not 0 < info.state < len(_FABRIC):
        return None
    said = _FABRIC[info.state]
    return said if info.status == 0 else "%s, error %d" % (said, info.status)


def address(handle: Any) -> Optional[int]:
    """Return what a handle is to NVML: a pointer, always the same for one GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def mig_devices(device: Device) -> List[Fields]:
    """The MIG devices of a GPU: uuid, instance ids, memory and processes of each."""
    found: List[Fields] = []
    for number in range(device.ask("nvmlDeviceGetMaxMigDeviceCount")):
        handle = device.maybe("nvmlDeviceGetMigDeviceHandleByIndex", number)
        if handle is None:
            continue  # not every place is taken
        part = Device(device.nvml, device.index, handle)
        fields = part.of(
            ("uuid", "nvmlDeviceGetUUID", (), text),
            ("gpu_instance", "nvmlDeviceGetGpuInstanceId", (), int),
            ("compute_instance", "nvmlDeviceGetComputeInstanceId", (), int),
            ("processes", "nvmlDeviceGetComputeRunningProcesses", (), processes),
        )
        found.append(dict(fields, slot=number, **memory(part)))
    return found


class Reader:
    """All GPUs of this node, read in turn."""

    def __init__(self, nvml: Any, left_out: Set[int]) -> None:
        self.nvml = nvml
        self.left_out = left_out
        self._devices: Dict[int, Device] = {}
        self._known: Dict[int, Fields] = {}
        self._handles: Dict[Optional[int], int] = {}
        self._events: Any = None
        self._registered: Set[int] = set()
        self._pass = 0

    def start(self) -> None:
        """Load the driver's library and say what it is."""
        nvml = self.nvml
        nvml.nvmlInit()
        self.count = nvml.nvmlDeviceGetCount()
        about = {"gpus": self.count, "driver": text(nvml.nvmlSystemGetDriverVersion())}
        with contextlib.suppress(nvml.NVMLError):  # neither is needed
            cuda = divmod(nvml.nvmlSystemGetCudaDriverVersion(), 1000)
            about["cuda"] = "%d.%d" % (cuda[0], cuda[1] // 10)
            self._events = nvml.nvmlEventSetCreate()
        say(node=about)

    def read(self) -> None:
        """Make one pass over all GPUs."""
        for index in range(self.count):
            if index in self.left_out:
                continue
            say(on=index)
            try:
                fields = dict(self._fields(index), state="ok")
            except self.nvml.NVMLError as error:
                state = {_LOST: "lost", _RESET: "reset-required"}.get(error.value, "error")
                fields = {"state": state, "error": str(error)}
                self._devices.pop(index, None)
            say(gpu=index, fields=fields)
        self._tell_xids()
        self._pass += 1

    def _fields(self, index: int) -> Fields:
        device = self._devices.get(index)
        first = device is None
        if device is None:
            device = Device(self.nvml, index, self.nvml.nvmlDeviceGetHandleByIndex(index))
            self._devices[index] = device
            self._handles[address(device.handle)] = index
        device.begin(anew=self._pass % AGAIN == 0)
        fields = self._known[index] = identity(device) if first else self._known[index]
        fields = dict(fields, **reading(device))
        if first or self._pass % SLOW == 0:
            fields.update(health(device))
            if fields.get("mig"):
                fields["mig_devices"] = device.value("mig_devices", mig_devices, device) or []
        fields["missing"] = dict(device.missing)
        fields["error"] = None
        if first:
            self._register(device)
        return fields

    def _register(self, device: Device) -> None:
        if self._events is None or device.index in self._registered:
            return
        try:
            kind = self.nvml.nvmlEventTypeXidCriticalError
            self.nvml.nvmlDeviceRegisterEvents(device.handle, kind, self._events)
            self._registered.add(device.index)
        except self.nvml.NVMLError as error:
            device.missing["xids"] = str(error)

    def _tell_xids(self) -> None:
        """Say which Xids happened since the last pass; the kernel log has those before."""
        for _ in range(MAX_EVENTS if self._registered else 0):
            try:
                event = self.nvml.nvmlEventSetWait(self._events, 0)
            except self.nvml.NVMLError:
                return  # a timeout: there are no more
            # By its handle: one that is lost does not tell its number any more.
            index = self._handles.get(address(event.device))
            say(xid=int(event.eventData), gpu=index, at=time.time())


def main(arguments: List[str]) -> int:
    """Read until nobody listens; return the exit status."""
    place, seconds, left_out = arguments[0], float(arguments[1]), {int(a) for a in arguments[2:]}
    sys.path.extend([place] if place else [])
    try:
        ctypes.CDLL(LIBRARY)  # before pynvml, which takes a while to import
        import pynvml
    except OSError as error:
        say(missing=str(error))
        return 0
    except ImportError as error:
        say(error="pynvml cannot be imported: %s" % error)
        return 0
    reader, cost = Reader(pynvml, left_out), 0.0
    try:
        reader.start()
        while True:
            began = time.process_time()
            reader.read()
            cost += 0.2 * (time.process_time() - began - cost)  # some passes take longer
            pause = max(seconds, cost / MAX_CPU)
            say(pause=pause)
            if not seconds:
                return 0
            time.sleep(pause)
    except pynvml.NVMLError as error:
        say(error="NVML: %s (%d)" % (error, error.value))
    except BrokenPipeError:
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
