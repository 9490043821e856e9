package spelling

import "fmt"

// Count is a number with what it is of, in the form for one or that for all other numbers: Count(n, "text was", "texts were") is "1 text was" and
// "3 texts were".
func Count[N int | int64](n N, one, many string) string {
	return fmt.Sprint(n, " ", Form(n, one, many))
}

// Form is what stands with a number: the form for one, or that for all others.
func Form[N int | int64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
