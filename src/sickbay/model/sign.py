"""What a text or a reading says, before anybody asks on which node."""

from sickbay.model.noun import Noun

Fields = dict[str, str | int]


class Sign(Noun):
    """One sign of sickness: `kind` and `fields` as `brain.classify` reads them, `text` is the evidence.

    `kind` is `xid` or `sxid` (with the field `number`), `job` (with `name`, a row of diagnosis.csv), `boot` (a machine
    began anew), or a code of the fault tables (`gpu.fallen_off_bus`). Fields that more than one reader writes:

    - `pci` as the source has it, in lower case (`0000:b9:00` or `0000:b9:00.0`); `device` the GPU's index; `uuid`;
      `serial`; `mig` the GPU instance; `link` the NVLink; `switch` the NVSwitch; `port`, `interface`, `disk`, `mount`,
      `cpu`
    - `pid`, `name`: the process that the driver blames
    - `follows`: the Xid that this one is a consequence of
    - `advice`: a Remedy, what the driver itself asks for (154)
    - `severity`: `fatal | nonfatal`, the driver's own word (SXid)
    - `resolution`: a Remedy that the line's own registers ask for, by NVIDIA's decode tables; `unit`, `why` say how
    """

    kind: str
    fields: Fields = {}
    text: str = ""
    line: int = 0  # where it stands in what was read, from 1
    count: int = 1
