package engine

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// splits is how a message begins by which a rank splits the world: others may exchange something else at this place.
const splits = "split by color "

// SplitMessage is what a rank says to those that split the world with it.
func SplitMessage(color int) []byte {
	return binary.LittleEndian.AppendUint64([]byte(splits), uint64(color))
}

// Members are the ranks whose messages have a color. Of one that says something else culprit is the number.
func Members(messages [][]byte, color int) (ranks []int, culprit int, err error) {
	for r, m := range messages {
		its, ok := strings.CutPrefix(string(m), splits)
		if !ok || len(its) != 8 {
			return nil, r, fmt.Errorf("ranks disagree: it exchanges a message of %d bytes where others split the world", len(m))
		}
		if int(binary.LittleEndian.Uint64([]byte(its))) == color {
			ranks = append(ranks, r)
		}
	}
	return ranks, 0, nil
}
