"""Anomaly mode under the names of ``torch.autograd.anomaly_mode``."""

from __future__ import annotations

from aotgrad.frontend.anomaly import detect_anomaly, set_detect_anomaly

__all__ = ["detect_anomaly", "set_detect_anomaly"]
