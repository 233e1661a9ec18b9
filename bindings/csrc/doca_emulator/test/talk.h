/* A server and clients of Comch for the tests, and what their callbacks received. */
#ifndef OFFPATH_DOCA_EMULATOR_TALK_H
#define OFFPATH_DOCA_EMULATOR_TALK_H

#include "harness.h"

enum { TALK_MAX = 4096 };

struct talk {
    struct doca_dev *dev;
    struct doca_dev_rep *rep; /* of the server */
    struct doca_comch_server *server;
    struct doca_comch_client *client;
    struct doca_ctx *ctx;
    struct doca_pe *pe;
    struct doca_comch_connection *connections[64]; /* of the server: the connected clients */
    size_t connected, disconnected, refused;
    size_t sent, failed, received;
    doca_error_t errors[64];
    uint32_t last_len;
    uint8_t last[TALK_MAX];
    struct doca_comch_connection *from;
    bool echoes; /* the server sends back what it receives */
    uint8_t answers[64][TALK_MAX];
    enum doca_ctx_states states[16];
    size_t state_count;
};

void serve(struct talk *talk, const char *name, uint32_t queue, uint32_t tasks);
void call(struct talk *talk, const char *name, uint32_t queue, uint32_t tasks); /* a client, not yet started */
void call_and_wait(struct talk *talk, const char *name, uint32_t queue, uint32_t tasks);
struct doca_comch_connection *peer(struct talk *talk); /* of a client */
doca_error_t try_send(struct talk *talk, struct doca_comch_connection *to, const void *msg, uint32_t len);
void hang_up(struct talk *talk); /* stops, progresses until idle, and destroys all */
void both_until(struct talk *one, struct talk *other, bool (*claim)(void *of), void *of);

#endif
