{{- define "multigate.labels" -}}
app.kubernetes.io/name: multigate
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* What no pod of ours may do. */}}
{{- define "multigate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "multigate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where copies of an object store's files go: the image's own file system is for reading. */}}
{{- define "multigate.cache" -}}
- {name: MULTIGATE_CACHE, value: /tmp/cache}
{{- end }}

{{/* Where a pod may run: `nodeSelector`, `tolerations`, `affinity`. */}}
{{- define "multigate.placement" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $ $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}
