/* A double of quotactl(2), for kernels that have no format of quotas: preloaded by tests. It says
   of one user on one device that all is used up; QUOTA is `DEVICE UID`. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/quota.h>

int quotactl(int cmd, const char *device, int id, void *answer)
{
    const char *told = getenv("QUOTA");
    char wanted[4096];
    struct if_dqblk data = {0};
    snprintf(wanted, sizeof wanted, "%s %d", device, id);
    if (!told || strcmp(told, wanted) || cmd != (int)QCMD(Q_GETQUOTA, USRQUOTA)) {
        errno = ESRCH;
        return -1;
    }
    data.dqb_bhardlimit = 20 << 20; /* of 1024 bytes */
    data.dqb_curspace = (uint64_t)20 << 30;
    data.dqb_valid = QIF_ALL;
    memcpy(answer, &data, sizeof data);
    return 0;
}
