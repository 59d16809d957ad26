"""Telemetry for other systems: metrics for Prometheus, spans and metrics for OpenTelemetry."""
