// Validates resources of the Prometheus operator, a JSON list on standard input, by its schemas.
import { PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
import { readFileSync } from "node:fs";

const kinds = { PrometheusRule, ServiceMonitor };
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  new kinds[resource.kind](resource).validate();
}
