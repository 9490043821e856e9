//go:build !race

package recipe_test

const raceEnabled = false
