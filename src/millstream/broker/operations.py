"""What may be done with things of a kind, as clients are told it: a bit for each operation (KIP-430).

Without access control, that is all that can be.
"""

from __future__ import annotations

from typing import Final

NOT_ASKED_FOR: Final = -(2**31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << code for code in range(3, 9))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (1 << code for code in range(9, 13))

_CONFIGS: Final = _DESCRIBE_CONFIGS | _ALTER_CONFIGS
ON_A_GROUP: Final = _READ | _DELETE | _DESCRIBE | _CONFIGS
ON_A_TOPIC: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
ON_THE_CLUSTER: Final = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _CONFIGS | _IDEMPOTENT_WRITE
