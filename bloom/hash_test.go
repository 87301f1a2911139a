package bloom

import (
	"encoding/binary"
	"encoding/hex"
	"testing"
)

// From the reference implementation, github.com/veorq/SipHash: the key is the bytes
// 0 to 15, the input the bytes 0, 1, … of the given length.
var sipVectors = map[int]string{
	0:  "a3817f04ba25a8e66df67214c7550293",
	1:  "da87c1d86b99af44347659119b22fc45",
	2:  "8177228da4a45dc7fca38bdef60affe4",
	3:  "9c70b60c5267a94e5f33b6b02985ed51",
	4:  "f88164c12d9c8faf7d0f6e7c7bcd5579",
	5:  "1368875980776f8854527a07690e9627",
	6:  "14eeca338b208613485ea0308fd7a15e",
	7:  "a1f1ebbed8dbc153c0b84aa61ff08239",
	8:  "3b62a9ba6258f5610f83e264f31497b4",
	9:  "264499060ad9baabc47f8b02bb6d71ed",
	10: "00110dc378146956c95447d3f3d0fbba",
	11: "0151c568386b6677a2b4dc6f81e5dc18",
	12: "d626b266905ef35882634df68532c125",
	13: "9869e247e9c08b10d029934fc4b952f7",
	14: "31fcefac66d7de9c7ec7485fe4494902",
	15: "5493e99933b0a8117e08ec0f97cfc3d9",
	16: "6ee2a4ca67b054bbfd3315bf85230577",
	31: "2939b0183223fafc1723de4f52c43d35",
	32: "7c3956ca5eeafc3e363e9d556546eb68",
	63: "5150d1772f50834a503e069a973fbd7c",
}

func TestSumIsSipHash(t *testing.T) {
	var b [64]byte
	for i := range b {
		b[i] = byte(i)
	}
	k := keyOf(b[:16])
	for n, want := range sipVectors {
		h := k.sum(string(b[:n]))
		got := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, h.a), h.b)
		if hex.EncodeToString(got) != want {
			t.Errorf("%d bytes: got %x, want %s", n, got, want)
		}
	}
}
