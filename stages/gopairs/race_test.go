//go:build race

package gopairs

const raceDetector = true
