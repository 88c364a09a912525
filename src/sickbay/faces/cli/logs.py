"""sickbay logs JOB: what a rank wrote, followed across attempts."""

from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.client import ServerRefused, connect, segment
from sickbay.faces.cli.columns import say
from sickbay.faces.cli.names import complete_job
from sickbay.faces.cli.stages import OVER, why
from sickbay.model.plain_text import PlainStream

if TYPE_CHECKING:
    from sickbay.faces.cli.client import Client

HELD = 15.0  # seconds that the server may hold a request while there is nothing new
PIECE = 1 << 20  # bytes at once
NEXT_LOOK = 1.0  # seconds between two looks at a job that is between attempts, if no event says more


@click.command("logs")
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@click.option("--rank", metavar="R", type=click.IntRange(min=0), default=0, show_default="0", help="Which rank.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="An older attempt; else the present one.")
@click.option(
    "--follow", "-f", is_flag=True, help="Go on as it writes, from one attempt to the next, to the job's end."
)
@click.option("--raw", is_flag=True, help="As it was written; else without what a terminal would obey.")
def logs(job: str, rank: int, attempt: int | None, follow: bool, raw: bool) -> None:
    """What a rank of a job wrote: its beginning and its end; a line says what was left out between them.

    Colours, titles and all else that a terminal would obey is taken out, on a terminal and in a pipe.

    \b
    sickbay logs train-1a2b3
    sickbay logs train-1a2b3 --rank 1 --follow
    sickbay logs train-1a2b3 --attempt 1 | grep -i error
    """
    client = connect()
    found = client.get(f"/v1/jobs/{segment(job)}")
    if attempt is None and not found["attempt"] and not follow:
        say(f"{found['id']} has not begun: {found['because'] or found['state']}")
        return
    reader = LogReader(client, found["id"], rank, raw=raw)
    if attempt is not None or not follow:
        reader.read(attempt or found["attempt"], follow=follow)
    else:
        reader.follow(found)


class LogReader:
    def __init__(self, client: "Client", job: str, rank: int, *, raw: bool = False) -> None:
        from sickbay.faces.cli.watch import ReconnectPatience

        self._raw = raw
        self._client, self._job, self._rank = client, job, rank
        self._patience = ReconnectPatience(say)

    def read(self, attempt: int, *, follow: bool, told: bool = False) -> None:
        """All that one attempt wrote; with `follow`, until it ends."""
        after, plain = "", PlainStream()
        while True:
            page = self._page(attempt, after, follow=follow)
            if page is None:
                return
            if page["text"] and told:
                say(f"— attempt {attempt} —")
                told = False
            if page["text"]:
                # Whatever is left of it is meant: `color` keeps click from taking out a part of that in a pipe.
                click.echo(page["text"] if self._raw else plain.take(page["text"]), nl=False, color=True)
            if not page["text"] and (page["over"] or not follow or not self._goes_on(attempt)):
                click.echo(plain.end(), nl=False)
                return
            after = page["next"]

    def _page(self, attempt: int, after: str, *, follow: bool) -> dict[str, Any] | None:
        """None: this rank wrote nothing in this attempt, and will not."""
        path = f"/v1/jobs/{segment(self._job)}/logs"
        query: dict[str, Any] = {"rank": self._rank, "attempt": attempt, "after": after or None, "limit": PIECE}
        if not follow:
            page = self._client.get(path, **query)
        else:
            try:
                page = self._patience.ask(lambda: self._client.get(path, **query, wait=HELD), NEXT_LOOK)
            except ServerRefused as error:
                if error.status not in {404, 409} or self._first(attempt):
                    raise
                return None
        return page if isinstance(page, dict) else None

    def _first(self, attempt: int) -> bool:
        """A rank that the first attempt does not have is a slip; a later one may have fewer nodes."""
        return attempt <= 1

    def _goes_on(self, attempt: int) -> bool:
        job = self._look()
        return job["attempt"] == attempt and job["state"] not in OVER

    def _look(self) -> dict[str, Any]:
        job: dict[str, Any] = self._patience.ask(lambda: self._client.get(f"/v1/jobs/{segment(self._job)}"), NEXT_LOOK)
        return job

    def follow(self, job: dict[str, Any]) -> None:
        from sickbay.faces.cli.watch import about, watching

        done = 0
        with watching(self._client, about("job", self._job)) as watch:
            while True:
                if job["attempt"] > done:
                    done = job["attempt"]
                    self.read(done, follow=True, told=done > 1)
                elif job["state"] in OVER:
                    say(f"{self._job} is over: {job['state']}{f': {said}' if (said := why(job)) else ''}")
                    return
                else:
                    watch.wait(NEXT_LOOK)
                job = self._look()
