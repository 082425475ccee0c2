import pytest

from rocbake import workshop
from rocbake.errors import UsageError


@pytest.mark.parametrize(("text", "jobs"), [(None, None), ("1", 1), ("08", 8), ("1024", 1024)])
def test_jobs_are_a_whole_number(text, jobs):
    assert workshop.parse_jobs(text) == jobs


@pytest.mark.parametrize(
    "text", ["", "0", "1025", "-1", "+1", "1.5", "two", "1 ", "1\n", "٣", "1" * 5000]
)
def test_other_jobs_are_refused(text):
    with pytest.raises(UsageError, match="--jobs: expected a whole number from 1 to 1024, got"):
        workshop.parse_jobs(text)
