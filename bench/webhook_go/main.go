// A minimal mutating webhook on controller-runtime that makes the same patch as ateplace's: the yardstick of
// `make bench-webhook`. It is written the way controller-runtime's users write one: decode the pod, change it,
// let PatchResponseFromRaw find the difference.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	poolLabel = "ate.dev/worker-pool"
	uidLabel  = "ate.dev/worker-pool-uid"
	name      = "wait-for-atelet"
)

type mutator struct {
	decoder admission.Decoder
	pools   map[string]string
	script  string
	image   string
}

func (m *mutator) Handle(_ context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := m.decoder.Decode(req, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	pool := pod.Labels[poolLabel]
	if pool == "" {
		return admission.Allowed("")
	}
	uid, found := m.pools[req.Namespace+"/"+pool]
	if !found {
		return admission.Denied("no such pool")
	}
	pod.Labels[uidLabel] = uid
	pod.Spec.InitContainers = append([]corev1.Container{m.container()}, pod.Spec.InitContainers...)
	if pod.Spec.PriorityClassName == "" {
		pod.Spec.PriorityClassName = "ateplace-ateom"
		pod.Spec.Priority = nil
		pod.Spec.PreemptionPolicy = nil
	}
	if pod.Spec.SchedulerName == "" || pod.Spec.SchedulerName == corev1.DefaultSchedulerName {
		pod.Spec.SchedulerName = "ateplace-scheduler"
	}
	patched, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, patched)
}

func (m *mutator) container() corev1.Container {
	no, yes, user := false, true, int64(65532)
	amounts := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("100m"),
		corev1.ResourceMemory: resource.MustParse("16Mi"),
	}
	return corev1.Container{
		Name:                     name,
		Image:                    m.image,
		ImagePullPolicy:          corev1.PullIfNotPresent,
		Command:                  []string{"sh", "-c", m.script, name, "8085", "0"},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Resources:                corev1.ResourceRequirements{Limits: amounts, Requests: amounts},
		Env: []corev1.EnvVar{{Name: "HOST_IP", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.hostIP"},
		}}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			Privileged:               &no,
			ReadOnlyRootFilesystem:   &yes,
			RunAsGroup:               &user,
			RunAsNonRoot:             &yes,
			RunAsUser:                &user,
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

func main() {
	port := flag.Int("port", 0, "port to serve on")
	certs := flag.String("certs", "", "directory with tls.crt and tls.key")
	pool := flag.String("pool", "", "namespace/name of the one pool")
	uid := flag.String("uid", "", "its UID")
	image := flag.String("image", "", "image of the init container")
	script := flag.String("script", "", "script of the init container")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseDevMode(false)))
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		fail(err)
	}
	handler := &mutator{
		decoder: admission.NewDecoder(scheme),
		pools:   map[string]string{*pool: *uid},
		image:   *image,
		script:  *script,
	}
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certs})
	server.Register("/mutate", &webhook.Admission{Handler: handler})
	if err := server.Start(ctrl.SetupSignalHandler()); err != nil {
		fail(err)
	}
}

func fail(err error) {
	os.Stderr.WriteString(err.Error() + "\n")
	os.Exit(1)
}
