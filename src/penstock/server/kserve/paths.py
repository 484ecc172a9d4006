"""The paths of the dialect's endpoints.

Where a path has ``{model:path}``, that is the model's name, and may end with
``/versions/VERSION``.
"""

from __future__ import annotations

MODEL = "/v2/models/{model:path}"
INFER = f"{MODEL}/infer"
GENERATE = f"{MODEL}/generate"
GENERATE_STREAM = f"{MODEL}/generate_stream"
INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/{model:path}/load"
UNLOAD = "/v2/repository/models/{model:path}/unload"
