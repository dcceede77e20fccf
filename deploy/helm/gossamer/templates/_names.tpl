{{- define "gossamer.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "gossamer.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gossamer.labels" -}}
{{ include "gossamer.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gossamer.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "gossamer.frontierSecret" -}}
{{- .Values.frontier.existingSecret | default (printf "%s-frontier" (include "gossamer.name" .)) -}}
{{- end }}

{{- define "gossamer.tokensSecret" -}}
{{- .Values.tokens.existingSecret | default (printf "%s-tokens" (include "gossamer.name" .)) -}}
{{- end }}

{{- define "gossamer.frontierEnv" -}}
- name: GOSSAMER_FRONTIER
  valueFrom:
    secretKeyRef:
      name: {{ include "gossamer.frontierSecret" . }}
      key: frontier-url
{{- end }}

{{- /* A value that was given, or what the Secret has already, or a new one. */ -}}
{{- define "gossamer.kept" -}}
{{- $there := lookup "v1" "Secret" .root.Release.Namespace .secret -}}
{{- if .given }}{{ .given }}
{{- else if and $there (hasKey ($there.data | default dict) .key) }}{{ index $there.data .key | b64dec }}
{{- else }}{{ randAlphaNum 40 }}{{ end -}}
{{- end }}

{{- define "gossamer.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gossamer.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gossamer.scaleAddress" -}}
{{- .Values.service.address | default (printf "http://%s-service.%s.svc:%v" (include "gossamer.name" .) .Release.Namespace .Values.service.port) -}}
{{- end }}

{{- define "gossamer.toFrontier" -}}
{{- if .Values.redis.enabled }}
- to:
    - podSelector:
        matchLabels:
          {{- include "gossamer.selector" . | nindent 10 }}
          app.kubernetes.io/component: redis
  ports:
    - {protocol: TCP, port: 6379}
{{- end }}
{{- with .Values.frontier.cidrs }}
- to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range $.Values.frontier.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end }}

{{- define "gossamer.toNames" -}}
- to:
    - namespaceSelector:
        matchLabels: {{- toYaml .Values.networkPolicy.dns.namespaceLabels | nindent 10 }}
      podSelector:
        matchLabels: {{- toYaml .Values.networkPolicy.dns.podLabels | nindent 10 }}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}
