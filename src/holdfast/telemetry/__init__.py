"""What others' instruments are told: metrics for Prometheus, spans and metrics for OpenTelemetry."""
