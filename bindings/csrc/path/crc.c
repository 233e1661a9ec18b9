/* CRC-32 (polynomial 0xEDB88320, as zlib's), eight bytes at a time. Own code, so that the module links to nothing. */
#include "path.h"

enum { LANES = 8 };
static uint32_t tables[LANES][256];

void path_crc_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        tables[0][byte] = crc;
    }
    for (int lane = 1; lane < LANES; lane++)
        for (int byte = 0; byte < 256; byte++)
            tables[lane][byte] = tables[lane - 1][byte] >> 8 ^ tables[0][tables[lane - 1][byte] & 0xFF];
}

uint32_t path_crc(uint32_t crc, const unsigned char *bytes, size_t nbytes)
{
    crc = ~crc;
    for (; nbytes >= LANES; bytes += LANES, nbytes -= LANES) {
        uint32_t low = crc ^ (uint32_t)load(bytes, 4), high = (uint32_t)load(bytes + 4, 4);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24]
            ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^ tables[1][high >> 16 & 0xFF]
            ^ tables[0][high >> 24];
    }
    for (; nbytes; bytes++, nbytes--)
        crc = crc >> 8 ^ tables[0][(crc ^ *bytes) & 0xFF];
    return ~crc;
}
