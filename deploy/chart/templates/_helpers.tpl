{{- /* A value as the text of an environment variable: whole numbers without an exponent. */ -}}
{{- define "ateplace.scalar" -}}
{{- if and (kindIs "float64" .) (eq (floor .) (float64 .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "ateplace.settingsName" -}}
ateplace-settings-{{ include "ateplace.settings" . | sha256sum | trunc 10 }}
{{- end }}

{{- define "ateplace.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}{{ if .tag }}:{{ .tag }}{{ end }}@{{ .digest }}{{ else }}:{{ .tag | default (printf "v%s" $.Chart.AppVersion) }}{{ end }}
{{- end }}
{{- end }}

{{- /*
kube-scheduler's image: the one given, else the tested one (the second argument) on a cluster of its minor, else the
cluster's own version. A scheduler must not be newer than the API server.
*/ -}}
{{- define "ateplace.schedulerImage" -}}
{{- $ := index . 0 }}
{{- $tested := regexFind "v[0-9]+[.][0-9]+[.][0-9]+(@sha256:[0-9a-f]+)?$" (index . 1) }}
{{- $cluster := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" $.Capabilities.KubeVersion.Version }}
{{- with $.Values.scheduler.image }}
{{- if or .tag .digest -}}
{{ .repository }}{{ if .tag }}:{{ .tag }}{{ end }}{{ if .digest }}@{{ .digest }}{{ end }}
{{- else if hasPrefix (printf "%s." (regexFind "^v[0-9]+[.][0-9]+" $cluster)) $tested -}}
{{ .repository }}:{{ $tested }}
{{- else -}}
{{ .repository }}:{{ $cluster }}
{{- end }}
{{- end }}
{{- end }}
