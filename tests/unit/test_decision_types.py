"""What a decision may change of a row is typed as the row itself is."""

from typing import get_type_hints

import pytest

from sickbay.brain.decision import IncidentChanges, JobChanges
from sickbay.model.incident import Incident
from sickbay.model.job import Job
from sickbay.model.noun import Noun


@pytest.mark.parametrize(("changes", "row"), [(IncidentChanges, Incident), (JobChanges, Job)])
def test_each_field_that_a_decision_changes_has_the_type_that_the_row_gives_it(changes: type, row: type[Noun]) -> None:
    fields = get_type_hints(row)
    assert {name: fields.get(name) for name in get_type_hints(changes)} == get_type_hints(changes)
