"""Log prefixes of those who carry a line: containers, log collectors, launchers, loggers. One table for all readers.

What the kernel and syslog put before a line, and who speaks by it, is in `prefixes`; records that wrap a whole line
(JSON, an exported table) are in `readers/unwrap.py`.
"""

import re

_DAY, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d"
_RFC3339 = rf"{_DAY}T{_TIME}(?:\.\d{{1,9}})?(?:Z|[+-]\d\d:?\d\d)"

# --- containers and what collects their output
CRI = re.compile(rf"{_RFC3339} (?:stdout|stderr) [FP] ")  # containerd and CRI-O: /var/log/containers
POD = re.compile(r"\[pod/[\w.-]{1,253}/[\w.-]{1,253}\] ?")  # kubectl logs --prefix
COMPOSE = re.compile(r"[\w.-]{1,120} {1,40}\| (?! )")  # docker compose logs
REPLICA = re.compile(r"[A-Za-z][\w.-]{0,120}[-_]\d{1,4} {1,40}\| ?")  # the same, where a logger's `INFO | ` is no name
DOCKER = re.compile(rf"{_DAY}T{_TIME}\.\d{{3,9}}(?:Z|[+-]\d\d:?\d\d) ")  # docker logs -t, kubectl logs --timestamps
# aws logs tail: a stamp and the stream's name, which has no colon, so that `[rank3]:` is none
AWS_TAIL = re.compile(rf"{_RFC3339} (?!{_DAY} )(?=\S*[/\[\]-]\S* )[^\s:*,'\"]{{1,512}} ")
AWS_EVENTS = re.compile(r"EVENTS\t(?:\d{13}\t)?(?P<said>.*?)(?:\t\d{13})?$")  # aws logs get-log-events --output text

# --- which rank says it: torchrun, DeepSpeed, Open MPI, Ray, IBM's LSF, srun -l
_RANK = (
    r"(?:\[(?:rank|default|worker)[\s-]?\d{1,6}\]:?|\[\d{1,4},\d{1,6}\]<std(?:out|err)>:?"
    r"|\(\w[\w.:=,\s-]{0,80}\bpid=\d{1,10}[^)\n]{0,80}\)|\[\d{1,6}\]:|\d{1,6}:(?= ))[ \t]?"
)
RANKS = (re.compile(_RANK),) * 3  # torchrun's below srun's below a container's

# --- which host: pdsh, clush, Ansible. A name is taken off only before what can begin a line of its own.
_ITS_OWN = (
    r"\[ *\d{1,9}\.\d{6}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} |NVRM: |kernel: "
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_TIME} |{_DAY}[T ]"
    r"|[|+][ =-]|<\d{1,3}>|nvidia-nvswitch\d|\[rank\d|[A-Za-z_][\w.]{0,80}(?:Error|Exception)\b|Traceback \(most"
)
HOST = re.compile(rf"(?!kernel:|NVRM:)[A-Za-z][\w.-]{{0,62}}: ?(?={_ITS_OWN})")
# Before what the kernel says only what looks like a machine's name: of a program's it would make the kernel's word.
KERNELS_HOST = re.compile(
    r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}|(?:node|host|gpu|ip|worker|compute|dgx|hgx|cn|server)[\w.-]{0,80}|[\w]{1,40}-[\w.-]{1,80}"
    r"|\d{1,5}):\s+(?=\[|kern\s*:|user\s*:|<\d|\w{3}\s+\d|\d{4}-\d|NVRM:|nvidia|\S+\s+kernel:|kernel:|\d+,\d+,\d+,)"
)

# --- what a program's own logger puts there. Before a program's message a host needs a number or a dash to be one.
_LOGGER = re.compile(
    rf"[ \t]{{0,8}}(?:{_RANK}|(?:[A-Za-z][\w.-]{{0,63}}(?:-|\d)|\d{{1,3}}(?:\.\d{{1,3}}){{3}})\s{{0,3}}[|:]\s"
    rf"|\[?{_DAY}[T ]{_TIME}\S{{0,12}}\s(?:- |std(?:out|err) [FP] )?"
    r"|(?:-\s|\[)?(?:ERROR|CRITICAL|WARNING|INFO|FATAL)\b[\]:]?\s(?:-\s)?)"
)
DEEPEST = 4  # one on top of another


def without(line: str, *patterns: re.Pattern[str]) -> str:
    """The line without what each pattern, in this order, finds at its beginning."""
    at = 0
    for pattern in patterns:
        if found := pattern.match(line, at):
            at = found.end()
    return line[at:] if at else line


def message_at(line: str) -> int:
    """Where the message of a program's line begins: behind rank, host, stamp and level, in whatever order."""
    at = 0
    for _ in range(DEEPEST):
        found = _LOGGER.match(line, at)
        if found is None:
            break
        at = found.end()
    return at
