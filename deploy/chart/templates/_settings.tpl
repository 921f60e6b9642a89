{{- /* Written by release/chart.py from the settings in deploy/: change those, then say `make chart`. */ -}}
{{- define "ateplace.settings" -}}
{{- $data := dict }}
{{- $_ := set $data "ATEPLACE_LOG_FORMAT" "json" }}
{{- range $group, $fields := .Values.settings }}
{{- range $field, $value := $fields }}
{{- $name := printf "ATEPLACE_%s_%s" ($group | upper) ($field | upper) }}
{{- $_ := set $data $name (include "ateplace.scalar" $value) }}
{{- end }}
{{- end }}
{{- if not .Values.scheduler.enabled }}
{{- $_ := set $data "ATEPLACE_WEBHOOK_GATING_RESOURCE" "ateplace.ate.dev/gate" }}
{{- $_ := set $data "ATEPLACE_WEBHOOK_SCHEDULER_NAME" "" }}
{{- end }}
{{- if .Values.certManager.enabled }}
{{- $_ := set $data "ATEPLACE_CERTS_MANAGED" "false" }}
{{- end }}
{{- toYaml $data }}
{{- end }}
