# SPDX-License-Identifier: Apache-2.0
"""Progress and report for the Trainer of transformers."""
from __future__ import annotations

import os
from typing import Any, Dict, Optional, Union

import torch

from ._offload import offloaded


def report_callback(path: "Union[None, str, os.PathLike[str]]" = None, *,
                    model: Optional[torch.nn.Module] = None) -> Any:
    """A TrainerCallback for the Trainer of transformers, which must be installed.

    It adds stepwell/read_bytes, stepwell/written_bytes and stepwell/wait_share of
    Offload.progress() to the logs. path: the report is written there with each checkpoint and at
    the end. model: the offloaded model, if it is inside that of the Trainer.
    """
    import transformers

    class ReportCallback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None,
                   **given: Any) -> None:
            found = offloaded(model or given["model"]).progress()
            if logs is None or not found.steps:
                return
            own: Dict[str, float] = {
                "stepwell/read_bytes": found.read_bytes,
                "stepwell/written_bytes": found.written_bytes,
                "stepwell/wait_share": found.wait_share}
            logs.update(own)
            if state.log_history:  # a copy of the logs
                state.log_history[-1].update(own)

        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if path is not None:
                offloaded(model or given["model"]).write_report(path)

        on_train_end = on_save

    return ReportCallback()
