"""Types of the `--json` documents, for docs/json.md (`hangtop.docs.jsondoc`) and for tests.

Commands build most of these documents from mappings; real outputs of all of them are validated
against these types in tests/unit/tui/docs/test_jsondoc.py. The number in a schema's name changes
only when a field is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any

from hangtop.jsonschemas import itself, jobs, tools
from hangtop_core.analysis.flight.picture import FlightDiagnosis

DOCUMENTS: dict[str, Any] = {
    "hangtop.diagnosis/1": FlightDiagnosis,
    "hangtop.dump/1": jobs.Dump,
    "hangtop.watch/1": jobs.WatchEvent,
    "hangtop.logs/1": jobs.Logs,
    "hangtop.numerics-report/1": jobs.NumericsReport,
    "hangtop.strace/1": tools.Strace,
    "hangtop.files/1": tools.Files,
    "hangtop.core/1": tools.Cores,
    "hangtop.core-taken/1": tools.CoreTaken,
    "hangtop.captured/1": tools.Captured,
    "hangtop.doctor/1": tools.Doctor,
    "hangtop.doctor.clean/1": tools.DoctorClean,
    "hangtop.nettest/1": tools.Nettest,
    "hangtop.run-env/1": tools.RunEnvironment,
    "hangtop.config/1": itself.Config,
    "hangtop.version/1": itself.Version,
    "hangtop.scenarios/1": itself.Scenarios,
}
"""By schema. Of `hangtop.diagnosis/1` only `hangtop flight --json` has the part `flight`."""
