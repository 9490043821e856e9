//go:build !beam

package main

const withoutBeam = "; others need Apache Beam: go install -tags beam ./cmd/contraflow-prep"

func asWorker([]string) {}
